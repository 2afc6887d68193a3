"""List, compare and follow results of earlier audits."""
