"""Reader of YAML text: its values with their lines, and every problem that YAML itself cannot report.

The only files that import yaml. A text is read in three steps:

    text
      | compose_mapping     not YAML, too large, nested too deep, not a mapping
    tree of nodes, each with its position
      | duplicate_keys      keys that are given twice
      | YamlDocument.read   tags, keys that are no text, numbers in other bases
    values, with the line of each
"""
