"""Weights for people: grams up to a kilogram, then kilograms, then tonnes."""


def weight(grams: int) -> str:
    """A weight with its unit: "750 g", "1.2 kg", "3.0 t"."""
    if grams < 1024:
        return f"{grams} g"
    if grams < 1024 * 1024:
        return f"{grams / 1024:.1f} kg"
    return f"{grams / 1024 / 1024:.1f} t"
