"""Values of tasks in Chinese, Japanese, Thai and Korean: a whole word of a task counts, a piece of one does not."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from support.foreign.origins import doubts_of, origins_after

from ava_server.runs.origins import compared_text

WHOLE: list[tuple[str, Any]] = [
    ("给bob@example.org写信，说午餐在12:30，共30人。", "bob@example.org"),
    ("给张三写信，说午餐", "张三"),
    ("김철수에게 편지를 써 주세요.", "김철수"),
    ("请转账给上海浦东发展银行的李娜", "李娜"),
    ("请转账给上海浦东发展银行的李娜", "上海浦东发展银行"),
    ("请转账给上海浦东发展银行的李娜", "浦东发展银行"),
    ("把文件移到项目资料文件夹", "项目资料"),
    ("把文件移到项目资料文件夹", "项目资料文件夹"),
    ("给王小明发邮件", "王小明"),
    ("通知欧阳修明天开会", "欧阳修"),
    ("取消周五的会议", "周五"),
    ("東京都庁の要約", "東京都庁"),
    ("田中さんに会議の招待を送ってください", "田中"),
    ("田中さんに会議の招待を送ってください", "会議の招待"),
    ("佐藤恵に送る", "佐藤恵"),
    ("クレジットカード会社に連絡", "クレジットカード会社"),
    ("家賃85,000円を振り込んで", 85000),
    ("ส่งอีเมลถึงสมชายเรื่องประชุม", "สมชาย"),
    ("ส่งอีเมลถึงสมชายเรื่องประชุม", "ประชุม"),
    ("โอนเงิน 500 บาทให้สมหญิง", "สมหญิง"),
    ("จองโรงแรมเชียงใหม่วันศุกร์", "เชียงใหม่"),
    ("จองโรงแรมเชียงใหม่วันศุกร์", "วันศุกร์"),
    ("이영희와 예산 회의", "이영희"),
    ("부산에 있는 파라다이스호텔에서", "파라다이스호텔"),
    ("부산에 있는", "부산"),
    ("우유랑 계란 추가", "우유"),
    ("영업 채널에", "영업"),
    ("서울은행으로 보내", "서울은행"),
    ("박지성님께 보내", "박지성"),
    ("삼성전자의 보고서", "삼성전자"),
    ("부산에서 12월 4일부터 2박", "12월 4일"),
]
PIECES = [
    ("不要付款，只写总结", "付款"),
    ("请勿转账给李四", "转账"),
    ("未付款的订单", "付款"),
    ("禁止删除文件", "删除"),
    ("别删除文件", "删除"),
    ("北京大学生活动", "京大"),
    ("中国人民银行", "国人"),
    ("中华人民共和国", "华人"),
    ("研究生命起源", "究生"),
    ("給不要付款的人", "付款"),
    ("東京都庁の要約", "京都"),
    ("支払わないでください", "支払"),
    ("削除しないでください", "削除"),
    ("送信禁止です", "送信"),
    ("クレジットカード会社", "ジット"),
    ("大阪府知事", "阪府"),
    ("เขียนสรุปถึงสมชาย", "สมช"),
    ("อย่าโอนเงิน", "โอนเงิน"),
    ("ห้ามลบไฟล์", "ลบ"),
    ("ไม่ส่งอีเมล", "ส่ง"),
    ("มหาวิทยาลัย", "วิทยา"),
    ("ตากลม", "ากล"),
    ("이순신에게 보낼", "순신"),
    ("서울시립대학교에", "시립대"),
    ("대한민국", "한민"),
    ("결제하지 마세요", "결제"),
    ("삭제 금지", "삭제"),
    ("삭제까지는 하지 말고 요약만", "삭제"),
    ("전송만은 하지 마세요", "전송"),
    ("공개로는 하지 말고", "공개"),
    ("신한은행", "한은"),
    ("이순신에게", "이순"),
]
"""Pieces of words, and words that the task denies."""


@pytest.mark.parametrize(("task", "value"), WHOLE)
def test_a_whole_word_counts(task: str, value: Any) -> None:
    assert doubts_of(origins_after(task=task), to=value) == []


@pytest.mark.parametrize(("task", "value"), PIECES)
def test_a_piece_of_a_word_and_a_denied_word_do_not(task: str, value: str) -> None:
    assert doubts_of(origins_after(task=task), to=value) == [("to", "")]


@pytest.fixture
def without_dictionaries(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    compared_text._split_unspaced.cache_clear()
    monkeypatch.setattr(compared_text, "has_extra", lambda _name: False)
    yield
    compared_text._split_unspaced.cache_clear()


@pytest.mark.usefixtures("without_dictionaries")
def test_without_dictionaries_no_piece_counts_either() -> None:
    counted = [(task, value) for task, value in PIECES if doubts_of(origins_after(task=task), to=value) == []]
    assert counted == []
    asked = [value for task, value in WHOLE if doubts_of(origins_after(task=task), to=value)]
    assert len(asked) <= len(WHOLE) // 2, "where the script changes or a sign stands, a word is told from its neighbour"
