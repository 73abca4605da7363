#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| threadbare_relay::fuzzing::forward(data));
