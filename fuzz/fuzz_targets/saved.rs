#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| threadbare_control::fuzzing::saved(data));
