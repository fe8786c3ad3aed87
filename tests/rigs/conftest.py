"""Rigs that only root can build, with packages of the system, are collected for root only."""

import os

# For anyone else: sudo make test ARGS=tests/rigs
collect_ignore = (
    []
    if os.geteuid() == 0
    else [
        "test_behind_bouncer.py",
        "test_bouncer.py",
        "test_containers.py",
        "test_faketime.py",
        "test_hosts.py",
        "test_stopping.py",
    ]
)
