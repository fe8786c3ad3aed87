"""Numbers of things as people write them."""


def counted(number: int, noun: str) -> str:
    """Return a number of things in words: 1 step, 2 steps."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(noun: str, names: list[str]) -> str:
    """Return things by their names: argument a, arguments a, b."""
    return f"{noun if len(names) == 1 else f'{noun}s'} {', '.join(names)}"


def given(number: int) -> str:
    """Return how many were given: 1 was given, 2 were given."""
    return f"{number:,} {'was' if number == 1 else 'were'} given"
