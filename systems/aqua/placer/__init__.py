"""AQUA-PLACER (section 5): which server each model goes to, and who lends to whom there."""
