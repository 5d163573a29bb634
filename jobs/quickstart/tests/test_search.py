import unittest

from stockroom.search import find

PRODUCTS = ["Hex bolt M8", "Hex nut M8", "Carriage bolt M8", "Wing nut M6"]


class SearchTest(unittest.TestCase):
    def test_one_word(self):
        self.assertEqual(find(PRODUCTS, "wing"), ["Wing nut M6"])

    def test_case_does_not_matter(self):
        self.assertEqual(find(PRODUCTS, "CARRIAGE"), ["Carriage bolt M8"])

    def test_every_word_has_to_match(self):
        self.assertEqual(find(PRODUCTS, "hex bolt"), ["Hex bolt M8"])


if __name__ == "__main__":
    unittest.main()
