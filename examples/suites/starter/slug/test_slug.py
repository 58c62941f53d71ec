import unittest

from slug import slug


class SlugTest(unittest.TestCase):
    def test_words(self) -> None:
        self.assertEqual(slug("Crème brûlée, at last!"), "creme-brulee-at-last")

    def test_cut_between_words(self) -> None:
        self.assertEqual(slug("one two three", 9), "one-two")

    def test_whole_word_at_the_limit(self) -> None:
        self.assertEqual(slug("one two three", 7), "one-two")

    def test_a_single_long_word_is_cut(self) -> None:
        self.assertEqual(slug("extraordinary", 5), "extra")


if __name__ == "__main__":
    unittest.main()
