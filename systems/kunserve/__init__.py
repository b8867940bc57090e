"""KunServe (EuroSys'26; text: preprint of December 2024): decisions about dropping parameters."""
