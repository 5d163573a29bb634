import unittest

from stockroom.weights import weight


class WeightsTest(unittest.TestCase):
    def test_grams(self):
        self.assertEqual(weight(750), "750 g")

    def test_kilograms(self):
        self.assertEqual(weight(1000), "1.0 kg")
        self.assertEqual(weight(12_500), "12.5 kg")

    def test_tonnes(self):
        self.assertEqual(weight(3_000_000), "3.0 t")


if __name__ == "__main__":
    unittest.main()
