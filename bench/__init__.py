"""What Runner costs, measured beside a bare loop: ``python -m bench`` prints it as tables."""
