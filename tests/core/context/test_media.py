"""Images and documents in the context: what they count, and what is left out first."""

from base64 import b64encode
from itertools import pairwise

from runner.core.context import estimate
from runner.core.conversation import ToolResult, content_bytes, result_block
from runner.core.entries import ToolFinished
from runner.core.media import (
    MOST_IMAGE_BYTES,
    PDF,
    Media,
    left_out,
    media_blocks,
    with_bytes,
    without_bytes,
)
from tests.core.context.histories import Talk
from tests.core.story import says, uses
from tests.media import image

SHOT = Media("image", "image/png", "shot.png", b"x", 1_500, 1_000)


def look(talk, text="an image"):
    talk.number += 1
    prompt = talk.state.context.estimate
    talk.reply("tool_use", says("I look."), uses("Bash", f"t{talk.number}"), prompt=prompt)
    return talk.settle_count(talk.go_on(ToolFinished(0, ToolResult(text, media=(SHOT,)))))


def images_sent(talk):
    return [[*media_blocks(block)] for one in talk.state.sent for block in one.blocks]


def test_an_image_counts_its_pixels_and_no_base64():
    block = result_block("t1", ToolResult("an image", media=(SHOT,)))
    assert SHOT.tokens == 2_000
    assert 2_000 < estimate(block, 4.0) < 2_150
    assert 2 * 2_000 < content_bytes(block) < 5_000
    assert Media("image", "image/png", "a", b"", 8_000, 8_000).tokens == 3_279
    assert Media("document", PDF, "a", b"", pages=2).tokens == 6_000


def test_old_images_are_left_out_first_and_texts_stay():
    talk = Talk(keep=2)
    talk.exchange(1_500)
    while not talk.kinds:
        look(talk)
    assert talk.kinds == ["clip"]
    texts = [text for text in talk.sent_text if isinstance(text, str)]
    assert f"begin 1 {'x' * 1_500} end 1" in texts, "a long result of text is whole"
    assert "an image\n[image: shot.png, 1500x1000]" in texts
    sent = images_sent(talk)
    assert not any(sent[:-3])
    assert sent[-1], "a recent image is still sent"


def test_half_of_too_many_media_are_left_out_and_stay_out():
    blocks = [SHOT.block() for _ in range(140)]
    counts = [left_out(blocks[:number]) for number in range(141)]
    assert counts[:101] == [0] * 101
    assert counts[101] == 51
    assert counts[101:140] == [51] * 39, "the prompt stays the same for many turns"
    assert all(one <= other for one, other in pairwise(counts))


def test_pages_and_bytes_count_too():
    document = Media("document", PDF, "a", b"", pages=20).block()
    assert left_out([document] * 5) == 0
    assert left_out([document] * 6) == 4
    large = {**SHOT.block(), "source": {**SHOT.block()["source"], "bytes": 3_900_000}}
    assert left_out([large] * 4) == 0
    assert left_out([large] * 5) == 3


def test_a_block_is_stored_without_its_bytes_and_comes_back():
    media = Media("image", "image/png", "shot.png", image(), 64, 48)
    inline = with_bytes(media.block(), {media.sha256: media.data}.__getitem__, "name")
    assert without_bytes(inline) == (media.block(), (media,))


def test_a_block_that_is_no_image_for_the_api_stays_unchanged():
    for source in ({"type": "url", "url": "x"}, {"type": "base64", "data": "AAAA"}, {}, None):
        block = {"type": "image", "source": source}
        assert without_bytes(block) == (block, ())


def test_an_imported_block_cannot_name_stored_bytes():
    block = {"type": "tool_result", "tool_use_id": "t1", "content": [SHOT.block()]}
    kept, media = without_bytes(block)
    assert media == ()
    assert kept["content"] == [{"type": "text", "text": "[image: shot.png, 1500x1000]"}]


def test_an_imported_image_that_no_request_takes_becomes_a_line():
    for size, kind in ((MOST_IMAGE_BYTES, "image"), (MOST_IMAGE_BYTES + 1, "text")):
        data = image() + bytes(size - len(image()))
        source = {"type": "base64", "media_type": "image/png", "data": b64encode(data).decode()}
        block, media = without_bytes({"type": "image", "source": source})
        assert (block["type"], len(media)) == (kind, int(kind == "image"))
    assert block["text"] == "[image: an image, 64x48]"
