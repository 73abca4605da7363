#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| threadbare::fuzzing::audio_file(data));
