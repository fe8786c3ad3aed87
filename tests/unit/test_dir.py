"""What the package shows of itself."""

import holdfast as hf


def test_the_package_shows_its_public_names_and_no_other() -> None:
    """Whoever looks with `dir` or completes a name sees what there is to use, the kit for tests included."""
    assert {name for name in dir(hf) if not name.startswith("__")} == {
        *hf.__all__,
        "checkpoint",
        "harness",
        "mcp",
        "models",
        "server",
        "testing",
    }
