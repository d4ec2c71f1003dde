"""A mutation test of the product itself: is a wrong line stopped by the product, with no test looking?"""
