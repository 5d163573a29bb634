import unittest

from stockroom.pages import page, page_count


class PagesTest(unittest.TestCase):
    def test_full_pages(self):
        self.assertEqual(page_count(list(range(20)), 10), 2)
        self.assertEqual(page(list(range(20)), 2, 10), list(range(10, 20)))

    def test_the_last_page_may_be_short(self):
        self.assertEqual(page_count(list(range(21)), 10), 3)
        self.assertEqual(page(list(range(21)), 3, 10), [20])

    def test_there_is_no_page_past_the_last(self):
        with self.assertRaises(LookupError):
            page(list(range(20)), 3, 10)


if __name__ == "__main__":
    unittest.main()
