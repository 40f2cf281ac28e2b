"""Every variant of a test class's kernels, for its tests that take one."""

from variants import variants_in


def pytest_generate_tests(metafunc):
    if "variant" in metafunc.fixturenames:
        metafunc.parametrize("variant", variants_in(metafunc.cls.kernels))
