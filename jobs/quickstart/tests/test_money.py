import unittest

from stockroom.money import cents, total, written


class MoneyTest(unittest.TestCase):
    def test_whole_prices(self):
        self.assertEqual(cents("12.00"), 1200)

    def test_no_cent_is_lost(self):
        self.assertEqual(cents("19.99"), 1999)
        self.assertEqual(cents("0.29"), 29)

    def test_cents_are_written_with_two_digits(self):
        self.assertEqual(written(1205), "12.05")

    def test_the_sum_is_exact(self):
        self.assertEqual(total(["19.99", "0.29", "1.10"]), "21.38")


if __name__ == "__main__":
    unittest.main()
