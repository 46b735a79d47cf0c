"""What the model was checked against: bodies of reference data, and the error against each."""

from jaxmem.validation.body import Body, Case
from jaxmem.validation.validate import bodies, validate

__all__ = ["Body", "Case", "bodies", "validate"]
