import unittest

from stockroom.records import read


class RecordsTest(unittest.TestCase):
    def test_plain_values(self):
        self.assertEqual(read("product,count\nbolt,10\n"), [{"product": "bolt", "count": "10"}])

    def test_a_quoted_value_may_hold_a_comma(self):
        note = 'product,count\n"Hex bolt, M8",10\n'
        self.assertEqual(read(note), [{"product": "Hex bolt, M8", "count": "10"}])

    def test_a_quote_is_written_twice(self):
        note = 'product,count\n"Pipe 1/2""",3\n'
        self.assertEqual(read(note), [{"product": 'Pipe 1/2"', "count": "3"}])


if __name__ == "__main__":
    unittest.main()
