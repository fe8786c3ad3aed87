"""The shape of the package: who may import whom."""

from tests.architecture.project import check_with


def test_every_import_contract_holds() -> None:
    """Imports point down, and the write side and the read side meet only in the store."""
    check_with("lint-imports", "--no-cache")
