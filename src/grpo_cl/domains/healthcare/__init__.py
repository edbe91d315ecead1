"""A group of clinics: patients, providers with calendars, insurance plans, prescriptions."""
