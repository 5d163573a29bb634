import unittest

from stockroom.stock import OutOfStockError, Stock


class StockTest(unittest.TestCase):
    def setUp(self):
        self.stock = Stock({"bolt": 10, "nut": 4})

    def test_an_order_is_taken(self):
        self.stock.take({"bolt": 3, "nut": 4})
        self.assertEqual(self.stock.counts, {"bolt": 7, "nut": 0})

    def test_too_much_is_refused(self):
        with self.assertRaises(OutOfStockError):
            self.stock.take({"nut": 5})

    def test_a_refused_order_takes_nothing(self):
        with self.assertRaises(OutOfStockError):
            self.stock.take({"bolt": 3, "nut": 5})
        self.assertEqual(self.stock.counts, {"bolt": 10, "nut": 4})


if __name__ == "__main__":
    unittest.main()
