"""Shared settings: beartype checks shapes, rank promotion raises, hypothesis repeats itself."""

import importlib
import os
from pathlib import Path

# Compiling is most of what the tests do; how well the code is optimised is not what they test.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import hypothesis
import jax
import pytest
from jaxtyping import install_import_hook

hook = install_import_hook("jaxmem", "shape_checker.check")
hook.__enter__()

# Most tests ask for few points; test_bits.py runs tiles of the real size.
importlib.import_module("jaxmem.core.program").__dict__["N_LANE"] = 256

jax.config.update("jax_numpy_rank_promotion", "raise")
# Programs compiled once serve every worker, and the next run.
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parents[1] / ".jax_cache"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=50)
hypothesis.settings.load_profile("fixed")


@pytest.fixture(scope="session")
def reference() -> Path:
    """The folder of reference data, or a skip that says so."""
    default = Path(__file__).parents[2] / "shared"
    folder = Path(os.environ.get("JAXMEM_REFERENCE", default))
    if not folder.is_dir():
        pytest.skip("no reference data: JAXMEM_REFERENCE is not set")
    return folder


@pytest.fixture
def x64():
    """Float64 inside a test."""
    with jax.enable_x64(True):
        yield
