//! Libraries with the interface of libebur128, loaded by path: Debian's and this crate's.

// Each test crate uses another part of this.
#![allow(dead_code, unreachable_pub)]

use std::ffi::{CStr, CString, c_int, c_uint, c_ulong, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Debian's library, from the package `libebur128-1`, a dependency of `libebur128-dev`.
pub fn debian_path() -> PathBuf {
    let output = std::process::Command::new("cc")
        .arg("-print-multiarch")
        .output();
    let output = output.expect("cc runs; if it is missing, run scripts/setup test");
    let triplet = String::from_utf8(output.stdout).unwrap();
    let path = Path::new("/usr/lib")
        .join(triplet.trim())
        .join("libebur128.so.1");
    assert!(
        path.exists(),
        "no {}: run scripts/setup test",
        path.display()
    );
    path
}

/// This crate's library, which cargo builds next to the tests.
pub fn ours_path() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().join("libebur128.so");
    assert!(path.exists(), "cargo built no {}", path.display());
    path
}

#[repr(C)]
pub struct State {
    pub mode: c_int,
    pub channels: c_uint,
    pub samplerate: c_ulong,
    inner: *mut c_void,
}

type Reader = unsafe extern "C" fn(*mut State, *mut f64) -> c_int;
type ChannelReader = unsafe extern "C" fn(*mut State, c_uint, *mut f64) -> c_int;
type MultipleReader = unsafe extern "C" fn(*mut *mut State, usize, *mut f64) -> c_int;
type Setter = unsafe extern "C" fn(*mut State, c_ulong) -> c_int;
type Adder<T> = unsafe extern "C" fn(*mut State, *const T, usize) -> c_int;

macro_rules! library {
    ($($name:ident: $type:ty,)*) => {
        /// The functions of one of the libraries.
        pub struct Library { $(pub $name: $type,)* }

        impl Library {
            fn load(path: &Path) -> Library {
                let name = CString::new(path.to_str().unwrap()).unwrap();
                // SAFETY: a C string; both libraries have no constructors that do anything.
                let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
                assert!(!handle.is_null(), "{} does not load", path.display());
                let find = |name: &str| {
                    let name = CString::new(format!("ebur128_{name}")).unwrap();
                    // SAFETY: a live handle and a C string.
                    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
                    assert!(!found.is_null(), "{} has no {name:?}", path.display());
                    found
                };
                Library { $(
                    // SAFETY: the type is that of the function in `ebur128.h`, and the library is never unloaded.
                    $name: unsafe { std::mem::transmute::<*mut c_void, $type>(find(stringify!($name))) },
                )* }
            }
        }
    };
}

library! {
    get_version: unsafe extern "C" fn(*mut c_int, *mut c_int, *mut c_int),
    init: unsafe extern "C" fn(c_uint, c_ulong, c_int) -> *mut State,
    destroy: unsafe extern "C" fn(*mut *mut State),
    set_channel: unsafe extern "C" fn(*mut State, c_uint, c_int) -> c_int,
    change_parameters: unsafe extern "C" fn(*mut State, c_uint, c_ulong) -> c_int,
    set_max_window: Setter,
    set_max_history: Setter,
    add_frames_short: Adder<i16>,
    add_frames_int: Adder<i32>,
    add_frames_float: Adder<f32>,
    add_frames_double: Adder<f64>,
    loudness_global: Reader,
    loudness_global_multiple: MultipleReader,
    loudness_momentary: Reader,
    loudness_shortterm: Reader,
    loudness_window: unsafe extern "C" fn(*mut State, c_ulong, *mut f64) -> c_int,
    loudness_range: Reader,
    loudness_range_multiple: MultipleReader,
    sample_peak: ChannelReader,
    prev_sample_peak: ChannelReader,
    true_peak: ChannelReader,
    prev_true_peak: ChannelReader,
    relative_threshold: Reader,
}

/// Debian's library.
pub fn debian() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| Library::load(&debian_path()))
}

/// This crate's library.
pub fn ours() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| Library::load(&ours_path()))
}

/// The four types of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Short,
    Int,
    Float,
    Double,
}

/// A state of one of the libraries.
pub struct Meter {
    library: &'static Library,
    pub state: *mut State,
}

/// Return value of a function, and the value that it wrote.
pub type Reading = (c_int, f64);

impl Meter {
    pub fn new(library: &'static Library, channels: u32, rate_hz: u64, mode: i32) -> Option<Meter> {
        // SAFETY: any arguments are allowed.
        let state = unsafe { (library.init)(channels, rate_hz, mode) };
        (!state.is_null()).then_some(Meter { library, state })
    }

    pub fn channels(&self) -> u32 {
        // SAFETY: `state` lives as long as `self`.
        unsafe { (*self.state).channels }
    }

    pub fn rate_hz(&self) -> u64 {
        // SAFETY: `state` lives as long as `self`.
        unsafe { (*self.state).samplerate }
    }

    pub fn set_channel(&mut self, channel: u32, value: i32) -> c_int {
        // SAFETY: `state` lives, and is used here alone.
        unsafe { (self.library.set_channel)(self.state, channel, value) }
    }

    pub fn change_parameters(&mut self, channels: u32, rate_hz: u64) -> c_int {
        // SAFETY: as above.
        unsafe { (self.library.change_parameters)(self.state, channels, rate_hz) }
    }

    pub fn set_max_window(&mut self, window_ms: u64) -> c_int {
        // SAFETY: as above.
        unsafe { (self.library.set_max_window)(self.state, window_ms) }
    }

    pub fn set_max_history(&mut self, history_ms: u64) -> c_int {
        // SAFETY: as above.
        unsafe { (self.library.set_max_history)(self.state, history_ms) }
    }

    /// Adds interleaved samples with full scale 1.0, which are converted to `kind` first.
    pub fn add(&mut self, kind: Type, samples: &[f64]) -> c_int {
        let frames = samples.len() / self.channels() as usize;
        let state = self.state;
        let library = self.library;
        // SAFETY: `state` lives and is used only here; there are `frames` whole frames.
        unsafe {
            match kind {
                Type::Short => {
                    let samples: Vec<i16> = samples.iter().map(|x| (x * 32_768.0) as i16).collect();
                    (library.add_frames_short)(state, samples.as_ptr(), frames)
                }
                Type::Int => {
                    let samples: Vec<i32> = samples
                        .iter()
                        .map(|x| (x * 2_147_483_648.0) as i32)
                        .collect();
                    (library.add_frames_int)(state, samples.as_ptr(), frames)
                }
                Type::Float => {
                    let samples: Vec<f32> = samples.iter().map(|x| *x as f32).collect();
                    (library.add_frames_float)(state, samples.as_ptr(), frames)
                }
                Type::Double => (library.add_frames_double)(state, samples.as_ptr(), frames),
            }
        }
    }

    fn read(&self, read: impl FnOnce(*mut State, *mut f64) -> c_int) -> Reading {
        let mut value = UNWRITTEN;
        let code = read(self.state, &mut value);
        (code, value)
    }

    pub fn global(&self) -> Reading {
        // SAFETY: `state` lives; the value may be written. The same applies to all calls below.
        self.read(|state, out| unsafe { (self.library.loudness_global)(state, out) })
    }

    pub fn momentary(&self) -> Reading {
        // SAFETY: see `global`.
        self.read(|state, out| unsafe { (self.library.loudness_momentary)(state, out) })
    }

    pub fn shortterm(&self) -> Reading {
        // SAFETY: see `global`.
        self.read(|state, out| unsafe { (self.library.loudness_shortterm)(state, out) })
    }

    pub fn window(&self, window_ms: u64) -> Reading {
        // SAFETY: see `global`.
        self.read(|state, out| unsafe { (self.library.loudness_window)(state, window_ms, out) })
    }

    pub fn range(&self) -> Reading {
        // SAFETY: see `global`.
        self.read(|state, out| unsafe { (self.library.loudness_range)(state, out) })
    }

    pub fn relative_threshold(&self) -> Reading {
        // SAFETY: see `global`.
        self.read(|state, out| unsafe { (self.library.relative_threshold)(state, out) })
    }

    /// Sample peak and true peak, each with that of the last call.
    pub fn peaks(&self, channel: u32) -> [Reading; 4] {
        let library = self.library;
        [
            library.sample_peak,
            library.prev_sample_peak,
            library.true_peak,
            library.prev_true_peak,
        ]
        // SAFETY: see `global`.
        .map(|peak| self.read(|state, out| unsafe { peak(state, channel, out) }))
    }
}

/// Global loudness and range of several states.
pub fn multiple(library: &Library, meters: &[Option<&Meter>]) -> [Reading; 2] {
    let pointer = |meter: &Option<&Meter>| meter.map_or(std::ptr::null_mut(), |meter| meter.state);
    let mut states: Vec<*mut State> = meters.iter().map(pointer).collect();
    [
        library.loudness_global_multiple,
        library.loudness_range_multiple,
    ]
    .map(|read| {
        let mut value = UNWRITTEN;
        // SAFETY: `size` pointers to live states or NULL; the value may be written.
        let code = unsafe { read(states.as_mut_ptr(), states.len(), &mut value) };
        (code, value)
    })
}

/// The initial value, which a failing function leaves unchanged.
const UNWRITTEN: f64 = 12_345.0;

impl Drop for Meter {
    fn drop(&mut self) {
        // SAFETY: `state` is from `init` and still lives.
        unsafe { (self.library.destroy)(&mut self.state) };
        assert!(self.state.is_null());
    }
}

/// Returns the file that the loader used for a library. It shows that two different ones are loaded.
pub fn file_of(library: &Library) -> String {
    // SAFETY: `Dl_info` is pointers, for which zeros are valid; the address is that of a function.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        assert_ne!(libc::dladdr(library.init as *const c_void, &mut info), 0);
        CStr::from_ptr(info.dli_fname).to_str().unwrap().to_owned()
    }
}
