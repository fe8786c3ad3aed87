"""What is measured: one module per question, each a function from a bench to figures."""
