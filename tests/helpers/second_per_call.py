"""A fake stopwatch for tests of timing code: no real time passes."""


class SecondPerCall:
    """A stopwatch for which every call takes one second; keeps what the call returned."""

    def __init__(self) -> None:
        self.results = []

    def seconds(self, call) -> float:
        self.results.append(call())
        return 1.0
