"""The store on PostgreSQL."""

from holdfast.store.postgres.driver import PostgresStore

__all__ = ["PostgresStore"]
