"""Expressions in forms that keep their digits, before and after gradients are taken."""
