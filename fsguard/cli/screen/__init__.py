"""The live screen of `fsguard top`. Nothing else imports it: textual takes a third of a second."""
