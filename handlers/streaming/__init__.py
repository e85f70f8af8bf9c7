"""Sessions at serving time: requests that continue a sequence."""
