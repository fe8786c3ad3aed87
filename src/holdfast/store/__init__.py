"""The only package that touches a database."""
