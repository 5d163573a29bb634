import unittest

from stockroom.slugs import slug


class SlugTest(unittest.TestCase):
    def test_words_are_joined_by_hyphens(self):
        self.assertEqual(slug("Hex bolt"), "hex-bolt")

    def test_a_stretch_of_punctuation_is_one_hyphen(self):
        self.assertEqual(slug("Hex bolt, M8"), "hex-bolt-m8")

    def test_no_hyphen_at_either_end(self):
        self.assertEqual(slug("(steel)"), "steel")


if __name__ == "__main__":
    unittest.main()
