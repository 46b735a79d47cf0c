"""The papers' published numbers as data, and what the model says to each."""

from jaxmem.claims.claim import Claim, read
from jaxmem.claims.reproduce import PAPERS, reproduce

__all__ = ["PAPERS", "Claim", "read", "reproduce"]
