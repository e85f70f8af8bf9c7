"""Cache of compiled programs by content, shared by the packagings of one user.

Used only while packaging.
"""
