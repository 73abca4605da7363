//! Contexts: one thread, thousands of sources.
