"""The call stack in the simulator's messages, as shown to a student."""

from common.testing.stack import readable

MESSAGE = """\
no progress for a long time: an endless loop, or waiting for something?
  in kernel scores_kernel, block (1,0,0) thread (0,0,0)
  at task1/naive_attention.cu:84 (discriminator 3) in void scores_kernel<float>(float const*, long, AttentionMask)
  at task1/naive_attention.cu:98 in auto launch_scores<float>(float const*)::{lambda((auto:1)...)#2}::operator()() const
  at /tmp/fiber.cpp:12 in simulator_switch
  at :? in simulator_switch
  at task1/naive_attention.cu:12 in (anonymous namespace)::thread_number()
  at /usr/include/c++/12/bits/invoke.h:61 in std::__invoke<float (*)(int)>
  launched at task1/naive_attention.cu:98"""


def test_frames_of_the_simulator_and_types_are_left_out():
    assert readable(MESSAGE.splitlines()) == [
        "no progress for a long time: an endless loop, or waiting for something?",
        "  in kernel scores_kernel, block (1,0,0) thread (0,0,0)",
        "  at task1/naive_attention.cu:84 in scores_kernel<float>",
        "  at task1/naive_attention.cu:12 in thread_number",
        "  launched at task1/naive_attention.cu:98",
    ]
