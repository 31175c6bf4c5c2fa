"""`cowclip online demo`: all parts of online training in one terminal, watched and measured."""
