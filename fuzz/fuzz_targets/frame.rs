#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| threadbare_xdp::fuzzing::frame(data));
