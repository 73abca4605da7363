#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| threadbare_audio_file::fuzzing::audio_file(data));
