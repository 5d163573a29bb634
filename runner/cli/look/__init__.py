"""Looking at what there is and what was done."""
