"""Every operation that anyone may ask for."""
