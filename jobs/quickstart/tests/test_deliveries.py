import unittest
from datetime import date

from stockroom.deliveries import arrives, is_working_day


class DeliveriesTest(unittest.TestCase):
    def test_within_a_week(self):
        self.assertEqual(arrives(date(2026, 11, 16), 3), date(2026, 11, 19))

    def test_nothing_arrives_at_the_weekend(self):
        self.assertFalse(is_working_day(date(2026, 11, 21)))
        self.assertFalse(is_working_day(date(2026, 11, 22)))

    def test_over_a_weekend(self):
        self.assertEqual(arrives(date(2026, 11, 19), 2), date(2026, 11, 23))


if __name__ == "__main__":
    unittest.main()
