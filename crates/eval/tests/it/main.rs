//! The evaluation against a scripted server, and its rubrics on written answers.

mod answers;
mod reports;
mod runner;
mod scripted;
