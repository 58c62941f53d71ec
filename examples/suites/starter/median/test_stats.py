import unittest

from stats import median


class MedianTest(unittest.TestCase):
    def test_odd(self) -> None:
        self.assertEqual(median([3, 1, 2]), 2)

    def test_even(self) -> None:
        self.assertEqual(median([4, 1, 3, 2]), 2.5)

    def test_does_not_change_its_argument(self) -> None:
        values = [3, 1, 2]
        median(values)
        self.assertEqual(values, [3, 1, 2])

    def test_empty(self) -> None:
        with self.assertRaises(ValueError):
            median([])


if __name__ == "__main__":
    unittest.main()
