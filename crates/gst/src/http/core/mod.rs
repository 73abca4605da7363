//! What an HTTP transfer decides, without a socket or a clock.
//!
//! - `location`: which URLs are fetched, and their credentials, which no message shows.
//! - `response`: what the head of a response says of its body; `media`: of its format.
//! - `redirect`: where a redirection leads.
//! - `transfer`: what to ask for, which of the bytes that come are wanted, what follows a break.
//! - `pace`: whether a server is too slow.
//! - `problem`: what can go wrong, and what an application is told.

mod location;
mod media;
mod pace;
mod problem;
mod redirect;
mod response;
#[cfg(test)]
mod tests;
mod transfer;

pub(super) use self::location::{Location, LocationError};
pub(super) use self::media::Media;
pub(super) use self::pace::{Pace, PaceLimits};
pub(super) use self::problem::Problem;
pub(super) use self::redirect::{Hop, Hops};
pub(super) use self::response::{Answer, check_size, is_secret, refusal};
pub(super) use self::transfer::{Ask, Policy, Span, Transfer, Verdict};
