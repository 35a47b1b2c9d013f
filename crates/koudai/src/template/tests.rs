//! Chat templates in the styles of the supported families, and hostile ones.
