"""Parametrizes tests that take `variant` with every variant of their class's kernels."""

from variants import variants_in


def pytest_generate_tests(metafunc):
    if "variant" in metafunc.fixturenames:
        metafunc.parametrize("variant", variants_in(metafunc.cls.kernels))
